"""How families of models write a tool call: one syntax is one class, or one entry of the registry."""
