"""Iceberg's reference server of its REST catalog, in a JVM beside the tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import requests
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway


class Reference:
    """A catalog in memory behind `RESTCatalogServlet`, on loopback."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._session = requests.Session()
        self._made = 0
        assert self._ask("namespaces", {"namespace": ["db"]})[0] == 200

    def _ask(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        answer = self._session.post(f"{self._address}/v1/{path}", json=body, timeout=60)
        try:
            return answer.status_code, answer.json()
        except requests.JSONDecodeError:
            return answer.status_code, {"error": {"message": answer.text}}

    def make(self, request: dict[str, Any]) -> tuple[str, int, dict[str, Any]]:
        """Make a table; its name, the status, and its metadata or the error."""
        self._made += 1
        name = f"t{self._made}"
        status, answer = self._ask("namespaces/db/tables", {"name": name, **request})
        return name, status, answer["metadata"] if status == 200 else answer["error"]

    def commit(self, name: str, demands: Sequence[Any], updates: Sequence[Any]) -> tuple[int, dict[str, Any]]:
        """Commit to a table; the status, and its metadata or the error."""
        body = {"requirements": demands, "updates": updates}
        status, answer = self._ask(f"namespaces/db/tables/{name}", body)
        return status, answer["metadata"] if status == 200 else answer["error"]


@contextmanager
def reference_server() -> Iterator[Reference]:
    """Start it, and stop it at the end.

    Its own main class listens on every address, and wants another Jetty than the kit: its parts are put together here.
    """
    port, process = launch_gateway(
        classpath=os.path.join(os.environ["STRANDLINE_TEST_ICEBERG_KIT"], "*"),
        java_path=os.path.join(os.environ["JAVA_HOME"], "bin", "java"),
        javaopts=["-Dorg.slf4j.simpleLogger.defaultLogLevel=off"],
        redirect_stdout=subprocess.DEVNULL,
        redirect_stderr=subprocess.DEVNULL,
        die_on_exit=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        jvm = gateway.jvm
        catalog = jvm.org.apache.iceberg.inmemory.InMemoryCatalog()
        catalog.initialize("reference", {})
        adapter = jvm.org.apache.iceberg.rest.RESTCatalogAdapter(catalog)
        handler = jvm.org.eclipse.jetty.ee10.servlet.ServletContextHandler()
        servlet = jvm.org.apache.iceberg.rest.RESTCatalogServlet(adapter)
        handler.addServlet(jvm.org.eclipse.jetty.ee10.servlet.ServletHolder(servlet), "/*")
        server = jvm.org.eclipse.jetty.server.Server(jvm.java.net.InetSocketAddress("127.0.0.1", 0))
        server.setHandler(handler)
        server.start()
        yield Reference(f"http://127.0.0.1:{server.getURI().getPort()}")
    finally:
        gateway.close()
        process.terminate()
        process.wait(30)
