"""The flight log of this scheduler: records everything that enters a pool's scheduler, and decides it again."""
