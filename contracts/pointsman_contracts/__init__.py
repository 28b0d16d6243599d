"""Every message on the bus: models, subjects, schemas."""
