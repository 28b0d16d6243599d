"""The code that both edges share: HTTP and ext_proc."""
