"""Where names lead, and connections to there."""
