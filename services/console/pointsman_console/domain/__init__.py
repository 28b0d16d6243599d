"""Who may see what, and the state that pages show. Pure."""
