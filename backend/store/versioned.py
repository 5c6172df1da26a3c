"""Documents inside records: one pydantic model each, which writes and reads them, with a version.

A record holds its document as JSON and knows nothing of its fields. The model is defined by the package that the
document is about, and derives from `VersionedDocument`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from backend.store.errors import StoreError


class VersionedDocument(BaseModel):
    """Base of the documents. A subclass sets `VERSION`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    VERSION: ClassVar[int]

    def to_json(self) -> dict[str, Any]:
        """The document as JSON types, with its version; `from_json` brings back an equal one."""
        return {"version": self.VERSION, **self.model_dump(mode="json")}

    @classmethod
    def from_json(cls, document: Mapping[str, Any], where: str) -> Self:
        """The document in a record; `where` names the run and the record.

        Raises `StoreError` for a document of another version, and for a damaged one.
        """
        if not isinstance(document, Mapping):
            raise _damaged(where, f"it is {type(document).__name__}, not an object")
        version = document.get("version")
        if version != cls.VERSION:
            raise StoreError(
                f"{where} has version {version!r} of its document, and this program reads version {cls.VERSION}: read "
                "it with the program that wrote it"
            )
        try:
            return cls.model_validate(document)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise _damaged(where, f"{place}: {first['msg']}") from error


def _damaged(where: str, reason: str) -> StoreError:
    return StoreError(
        f"{where} cannot be read ({reason}): its document is damaged; import the run again from its export, or repeat "
        "the run"
    )
