"""Separates two questions that have nearly the same embedding.

"Is aspirin safe for dogs?" and "Is aspirin not safe for dogs?" have a cosine of 0.995, "5 USD" and "500 USD" one of
0.885 (all-MiniLM-L6-v2), and a true paraphrase often less. What changes an answer are few and short words: they are
compared as words.
"""
