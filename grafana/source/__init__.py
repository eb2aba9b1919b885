"""The dashboards as data. `make dashboards` writes grafana/dashboards/*.json from here; the JSON is committed.

`boards/` has a file a dashboard, with its sections, lines and panels, and the files of sections that it names;
`queries.yaml` the named queries, `shared.yaml` thresholds, colours and variables that several have, `kinds.yaml` what
keys a panel of each kind has and what Grafana calls them. `schema.py` reads it strictly, `queries.py` fills named
queries in, `panels.py` makes a panel, `dashboards.py` puts them together.
"""
