"""docker-compose.yml's optional services Grafana and Prometheus read what exists, as users that can only read."""

from urllib.parse import urlsplit
from xml.etree import ElementTree

import yaml

from services.net.http.operations import METRICS_PORT
from testkit.repository import ROOT
from tests.contract.packaging.container_files import (
    OURS,
    SERVICES,
    configs,
    environment,
    settings,
)


def test_dashboards_are_in_the_folder_that_grafana_reads() -> None:
    given = configs("grafana")
    (provider,) = yaml.safe_load(given["/etc/grafana/provisioning/dashboards/carillon.yml"].read_text())["providers"]
    folder = provider["options"]["path"]
    boards = {path for target, path in given.items() if target.startswith(f"{folder}/") and target.endswith(".json")}
    assert boards == set((ROOT / "dashboards").glob("*.json"))


def test_dashboards_read_clickhouse_as_a_user_that_can_only_read() -> None:
    text = configs("grafana")["/etc/grafana/provisioning/datasources/carillon.yml"].read_text()
    sources = {source["uid"]: source for source in yaml.safe_load(text)["datasources"]}
    source, clickhouse = sources["carillon-clickhouse"], environment("clickhouse")
    assert source["type"] == environment("grafana")["GF_PLUGINS_PREINSTALL_SYNC"].partition("@")[0]
    url = urlsplit(settings("analytics").clickhouse_url)
    given = source["jsonData"]
    assert (given["host"], given["port"], given["protocol"]) == (url.hostname, url.port, url.scheme)
    assert given["defaultDatabase"] == clickhouse["CLICKHOUSE_DB"]
    users = ElementTree.parse(configs("clickhouse")["/etc/clickhouse-server/users.d/carillon.xml"])
    user = users.find(f"users/{given['username']}")
    assert user is not None
    assert user.findtext("grants/query") == f"GRANT SELECT ON {given['defaultDatabase']}.*"
    assert users.findtext(f"profiles/{user.findtext('profile')}/readonly") == "2"
    (password,) = user.iter("password")
    name = password.attrib["from_env"]
    assert source["secureJsonData"]["password"] == f"${name}"
    assert environment("grafana")[name] == clickhouse[name] != clickhouse["CLICKHOUSE_ANALYTICS_PASSWORD"]


def test_prometheus_reads_the_metrics_of_every_role_and_grafana_reads_prometheus() -> None:
    config = yaml.safe_load(configs("prometheus")["/etc/prometheus/prometheus.yml"].read_text())
    targets = [target for job in config["scrape_configs"] for one in job["static_configs"] for target in one["targets"]]
    ports = {name: settings(name).console_port for name in OURS} | {"console": METRICS_PORT}
    assert sorted(targets) == sorted(f"{name}:{port}" for name, port in ports.items())
    text = configs("grafana")["/etc/grafana/provisioning/datasources/carillon.yml"].read_text()
    sources = {source["uid"]: source for source in yaml.safe_load(text)["datasources"]}
    url = urlsplit(sources["carillon-prometheus"]["url"])
    assert f"http://127.0.0.1:{url.port}/" in SERVICES[str(url.hostname)]["healthcheck"]["test"][-1]


def test_no_role_depends_on_the_dashboards() -> None:
    optional = {name for name, service in SERVICES.items() if "profiles" in service}
    assert optional == {"grafana", "prometheus", "operator"}
    assert all(not optional & service.get("depends_on", {}).keys() for service in OURS.values())
