"""The batch service: runs files of requests while engines have room."""
