"""What Kubernetes would put into the environment of every pod for the Service that is shipped."""

from __future__ import annotations

from pathlib import Path

import yaml

SERVICE = Path(__file__).parents[1] / "deploy" / "kubernetes" / "service.yaml"
ADDRESS = "10.96.0.12"


def service_links() -> dict[str, str]:
    """The variables of `enableServiceLinks`, which is on unless a pod turns it off."""
    service = yaml.safe_load(SERVICE.read_text("utf-8"))
    name = service["metadata"]["name"].upper().replace("-", "_")
    ports = service["spec"]["ports"]
    first = ports[0]["port"]
    found = {
        f"{name}_SERVICE_HOST": ADDRESS,
        f"{name}_SERVICE_PORT": str(first),
        f"{name}_PORT": f"tcp://{ADDRESS}:{first}",
    }
    for port in ports:
        number = port["port"]
        link = f"{name}_PORT_{number}_TCP"
        found |= {
            f"{name}_SERVICE_PORT_{port['name'].upper()}": str(number),
            link: f"tcp://{ADDRESS}:{number}",
            f"{link}_PROTO": "tcp",
            f"{link}_PORT": str(number),
            f"{link}_ADDR": ADDRESS,
        }
    return found
