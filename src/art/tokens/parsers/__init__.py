"""How models write tool calls and reasoning: one file per format, all of them read while the text arrives."""
