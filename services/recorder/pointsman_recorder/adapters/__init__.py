"""The store on disk, the stream of events, the ledger."""
