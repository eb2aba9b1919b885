"""The dashboards as data. `make dashboards` writes grafana/dashboards/*.json from here; the JSON is committed.

`boards/` has a file a dashboard, with its sections, lines and panels, and the files of sections that it names;
`queries.yaml` the named queries, `shared.yaml` thresholds, colours and variables that several have. `schema.py` says
which keys there are, `queries.py` fills named queries in, `panels.py` and `tables.py` build a panel of each kind,
`dashboards.py` puts them together. Needs grafana-foundation-sdk, which only developers install.
"""
