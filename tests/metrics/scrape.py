"""Scrapes a URL as Prometheus does, has Prometheus's own parser read the page, and prints its samples as JSON, one a line.

The parser refuses what OpenMetrics does not allow: metrics without a type, counters without _total, units that names lack.
"""

import json
import sys
import urllib.request

from prometheus_client.openmetrics.parser import text_string_to_metric_families

request = urllib.request.Request(sys.argv[1], headers={"Accept": "application/openmetrics-text; version=1.0.0"})
with urllib.request.urlopen(request, timeout=5) as answer:
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text"), answer.headers
    page = answer.read().decode()
for family in text_string_to_metric_families(page):
    assert family.documentation, family
    for sample in family.samples:
        print(json.dumps({"name": sample.name, "type": family.type, "labels": sample.labels, "value": sample.value}))
