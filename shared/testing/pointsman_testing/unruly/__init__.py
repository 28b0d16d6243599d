"""Engines whose misbehaviour is data, the matrix of misbehaviours, and the laws that each of its cells asserts.

`behaviour`: how an engine behaves. `engine`: an engine that behaves so. `fleet`: a process of such engines, told at run
time. `rows`, `cells`: the matrix. `world`: the gateway that it is tried on. `trial`: one cell. `laws`: its verdict.
"""
