"""A notebook's kernel: a real ipykernel in a process of its own, driven as Jupyter drives it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

if TYPE_CHECKING:
    from typing_extensions import Self

_SECONDS = 60.0
_CHECKOUT = Path(__file__).parents[2]


class Kernel:
    """Runs cells, and can be restarted, interrupted and shut down."""

    def __init__(self, home: Path) -> None:
        """Start it.

        Args:
            home: folder for what Jupyter keeps.
        """
        self._manager = KernelManager()
        # this interpreter, whatever kernels the user has installed
        self._manager._kernel_spec = KernelSpec(
            argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], language="python"
        )
        folders = ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR")
        env = os.environ | dict.fromkeys(folders, str(home))
        self._manager.start_kernel(env=env, cwd=str(_CHECKOUT))
        self._client = self._connected()
        self.pid = int(self.run("import os; os.getpid()"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.stop_channels()
        if self._manager.has_kernel:
            self._manager.shutdown_kernel(now=True)

    def run(self, code: str) -> str:
        """Run a cell.

        Returns:
            What it shows: the value of its last expression, else what it printed.
        """
        shown: list[str] = []
        reply = self._client.execute_interactive(
            code, timeout=_SECONDS, output_hook=lambda message: shown.extend(_texts(message["content"]))
        )["content"]
        assert reply["status"] == "ok", reply
        return "".join(shown).strip()

    def interrupt_when(self, ready: Path, code: str) -> None:
        """Run a cell that never ends, and stop it once it has made the file `ready`."""
        asked = self._client.execute(code)
        while not ready.exists():
            assert self._manager.is_alive()
        self._manager.interrupt_kernel()
        while True:
            reply = self._client.get_shell_msg(timeout=_SECONDS)
            if reply["parent_header"]["msg_id"] == asked:
                assert reply["content"]["ename"] == "KeyboardInterrupt", reply
                return

    def restart(self, *, now: bool) -> None:
        """As the menu does it.

        Args:
            now: kill it; else ask it to end.
        """
        self._client.stop_channels()
        self._manager.restart_kernel(now=now)
        self._client = self._connected()

    def shutdown(self) -> None:
        """Ask it to end."""
        self._manager.shutdown_kernel(now=False)

    def _connected(self) -> BlockingKernelClient:
        client = self._manager.client()
        assert isinstance(client, BlockingKernelClient)
        client.start_channels()
        client.wait_for_ready(timeout=_SECONDS)
        return client


def _texts(content: dict[str, Any]) -> list[str]:
    return [content["text"]] if "text" in content else [content.get("data", {}).get("text/plain", "")]
