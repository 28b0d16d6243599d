"""Pool snapshots, stale workers, Prometheus metrics; scrapes engines that have no agent."""
