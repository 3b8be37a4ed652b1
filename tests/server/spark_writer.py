"""A session of Spark's that inserts a key after the other by Iceberg's catalog, and says which were acknowledged.

Arguments: the address of the catalog, the credential, and the number after which keys begin.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

from strandline.spark.session import iceberg_package
from tests.harness import sessions


def main(uri: str, credential: str, first: str) -> None:
    sessions.IVY.mkdir(parents=True, exist_ok=True)
    builder = SparkSession.builder.master("local[2]")
    place = "spark.sql.catalog.nyc"
    more = {
        "spark.jars.packages": iceberg_package(),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        place: "org.apache.iceberg.spark.SparkCatalog",
        f"{place}.type": "rest",
        f"{place}.uri": uri,
        f"{place}.warehouse": "nyc/main",
        f"{place}.credential": credential,
        f"{place}.oauth2-server-uri": f"{uri}/v1/oauth/tokens",
        f"{place}.io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
        f"{place}.cache-enabled": "false",
    }
    for name, value in {**sessions.settings(Path(tempfile.mkdtemp())), **more}.items():
        builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    key = int(first)
    spark.sql(f"INSERT INTO nyc.db.t VALUES ({key})")
    print("ready", flush=True)
    while os.getppid() > 1:
        key += 1
        try:
            spark.sql(f"INSERT INTO nyc.db.t VALUES ({key})")
        except Exception:
            continue
        print(key, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
