"""Model files on this machine's disk: embeddings, pairs of texts, chat templates, tokenizers."""
