"""Flights that were flown, and their delays by carrier and month."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()
FLIGHTS = spark.conf.get("spark.flights.flights", "")
AIRLINES = spark.conf.get("spark.flights.airlines", "")
COLUMNS = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay DOUBLE, arr_time INT, "
    "sched_arr_time INT, arr_delay DOUBLE, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, "
    "air_time DOUBLE, distance DOUBLE, hour INT, minute INT, time_hour TIMESTAMP"
)


def raw(place: str | None, columns: str) -> DataFrame:
    return spark.read.schema(columns).option("header", "true").option("nullValue", "NA").csv(str(place))


@dp.materialized_view
def flown() -> DataFrame:
    airlines = raw(AIRLINES, "carrier STRING, name STRING").withColumnRenamed("name", "airline")
    return raw(FLIGHTS, COLUMNS).where(F.col("dep_time").isNotNull()).join(airlines, "carrier", "left")


@dp.materialized_view
def monthly_delays() -> DataFrame:
    return (
        spark.table("flown")
        .groupBy("carrier", "airline", "month")
        .agg(F.count("*").alias("flights"), F.round(F.avg("dep_delay"), 2).alias("mean_dep_delay"))
    )
