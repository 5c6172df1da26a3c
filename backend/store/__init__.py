"""Records of runs in SurrealDB."""

from backend.store import client_library as client_library  # first of all: how the library is imported
