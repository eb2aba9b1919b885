"""The figures pushed to a Pushgateway: one group a daemon, replaced at each push, deleted when it ends."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import basic_auth_handler, default_handler, delete_from_gateway, push_to_gateway

from megatron_monitor import scalars
from megatron_monitor.outputs.output import Output
from megatron_monitor.scalars import FilePath, Name
from megatron_monitor.units import PositiveSeconds

_EMPTY = CollectorRegistry()
"""prometheus_client makes the request; the page is ours."""


class Pushgateway(Output, frozen=True, kw_only=True, tag_field="type", tag="pushgateway"):
    """The metrics pushed to a Pushgateway; the daemon's group is deleted when it ends."""

    url: scalars.Url
    job: Name = "megatron-monitor"
    """As the rules know the daemons."""
    instance: Name | None = None
    """Names this daemon among those that push. None: host:port."""
    timeout: PositiveSeconds = 10.0
    """Of one push: longer than a gateway in health ever needs, shorter than the interval."""
    username: Name | None = None
    password_file: FilePath | None = None
    """The file that holds the password of basic auth, read at each push."""

    def problems(self) -> scalars.Problems:
        """What the values together have wrong."""
        if (self.username is None) != (self.password_file is None):
            yield "", "username and password_file belong together"

    def write(self, page: bytes, instance: str) -> None:
        """PUT: a run that is no longer exported leaves the gateway too. Raises OSError or HTTPException."""
        group = {"instance": self.instance or instance}
        push_to_gateway(self.url, self.job, _EMPTY, group, self.timeout, partial(self._handler, page=page))

    def remove(self, instance: str) -> None:
        """Delete the group: a gateway shows the last push for ever. Raises OSError or HTTPException."""
        group = {"instance": self.instance or instance}
        delete_from_gateway(self.url, self.job, group, self.timeout, self._handler)

    def _handler(
        self, url: str, method: str, timeout: float | None, headers: list[tuple[str, str]], data: bytes,
        page: bytes = b"",
    ) -> Callable[[], None]:  # fmt: skip
        data = data or page
        if self.username is None or self.password_file is None:
            return default_handler(url, method, timeout, headers, data)
        password = Path(self.password_file).read_text("utf-8").strip("\r\n")
        return basic_auth_handler(url, method, timeout, headers, data, self.username, password)
