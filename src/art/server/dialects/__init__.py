"""The HTTP protocols that agents speak. Each dialect parses into `calls.CallRequest` and answers from `capture.Completed`."""
