"""What engine and trainer both know of base models: their files, and the shape of Llama-like ones."""
