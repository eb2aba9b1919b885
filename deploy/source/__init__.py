"""What a site has of rules, dashboards and manifests, by its settings. The rules themselves are prometheus/rules/*.yml,
the chart is helm/; only the relay in runs.yml is written from here (incidents.yml), and a test holds it equal.
"""
