"""The Envoy edge: ext_proc in, the gateway's messages out."""
