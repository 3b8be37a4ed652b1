"""What spark-submit runs: `spark-submit --py-files strandline.zip job.py import s3://bucket/landing nyc/main/raw`."""

from strandline.spark.job import main

main()
