"""For tests, ours and our users': a tiny model, a real server, pytest fixtures.

`art.testing.tiny.tiny_model`, `art.testing.server.ArtServer`, and the fixtures of `art.testing.plugin`.
"""
