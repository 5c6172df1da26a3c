"""Documents inside records: one pydantic model each, which writes and reads them, with a version.

A record holds its document as JSON and knows nothing of its fields. The model is defined by the package that the
document is about, derives from `VersionedDocument` and says how each former version becomes the next one. A document
without a version is one of version 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from backend.store.errors import StoreError

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]


class VersionedDocument(BaseModel):
    """Base of the documents. A subclass sets `LATEST` and has in `UPGRADES` a function for each version below it.

    An upgrade gets the document of its version and returns that of the next one; it does not change what it gets.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    LATEST: ClassVar[int]
    UPGRADES: ClassVar[Mapping[int, Upgrade]]

    def to_json(self) -> dict[str, Any]:
        """The document as JSON types, with its version; `from_json` brings back an equal one."""
        return {"version": self.LATEST, **self.model_dump()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any], where: str) -> Self:
        """The document in a record; `where` names the run and the record.

        Raises `StoreError` where a newer program wrote it or where it lacks something that no upgrade can add.
        """
        if not isinstance(document, Mapping):
            raise _damaged(where, f"it is {type(document).__name__}, not an object")
        version = document.get("version", 0)
        if not isinstance(version, int) or not 0 <= version <= cls.LATEST:
            raise StoreError(
                f"{where} has version {version!r} of its document, and this program reads versions up to {cls.LATEST}: "
                "read it with the program that wrote it, or update this one"
            )
        current = dict(document)
        try:
            for number in range(version, cls.LATEST):
                current = cls.UPGRADES[number](current)
            return cls.model_validate(current)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            reason = f"{place}: {first['msg']}"
        except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
            reason = f"{type(error).__name__} {error}"
        raise _damaged(where, reason)


def _damaged(where: str, reason: str) -> StoreError:
    return StoreError(
        f"{where} cannot be read ({reason}): its document is damaged; import the run again from its export, or make "
        "the run anew"
    )
