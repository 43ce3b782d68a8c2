"""The Grafana dashboards as data: what they show, and how that becomes JSON and a page of docs."""
