"""The dashboards as code. `make dashboards` writes grafana/dashboards/*.json from here; the JSON is committed.

`queries.py` holds PromQL and the states' colours, `panels.py` one builder a kind of panel, `layout.py` rows and the
grid; one file a dashboard. Needs grafana-foundation-sdk, which only developers install.
"""
