"""Other people's tools: trackers that a run is reported to. Each is imported only when it is asked for by name."""
