"""Chat templates and tokenizers, as engines apply them."""
