"""Names of the same file on two machines: the path P of the controller is ``BASE + P`` on a host."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Places:
    """`base` is the directory of the run on a host: absolute, resolved, and named like no other."""

    base: str

    def there(self, path: str | Path) -> str:
        """An absolute path of the controller, on the host."""
        text = str(path)
        assert text.startswith("/"), text
        return text if self.is_there(text) else self.base + text

    def is_there(self, text: str) -> bool:
        """It is a path of the host already."""
        return text == self.base or text.startswith(f"{self.base}/")

    def here(self, path: str | Path) -> Path:
        """A path of the host, on the controller. One that does not lie in the copy stays as it is."""
        text = str(path)
        return Path(text.removeprefix(self.base) or "/") if self.is_there(text) else Path(text)

    def shown(self, value: Any) -> Any:
        """`value` with every path of the host in its texts as the controller knows it."""
        if type(value) is str:
            return value.replace(f"{self.base}/", "/") if self.base in value else value
        if type(value) is dict:
            return {self.shown(key): self.shown(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(map(self.shown, value))
        return value
