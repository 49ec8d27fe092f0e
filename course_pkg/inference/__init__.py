"""What is given around the engine: models, requests, pictures of memory, serving without pages."""
