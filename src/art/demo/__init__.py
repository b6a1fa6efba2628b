"""The demonstrations behind `art demo`: small agents with a measurable task."""
