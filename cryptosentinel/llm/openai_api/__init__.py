"""Any endpoint that speaks the OpenAI chat API."""
