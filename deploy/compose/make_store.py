"""Make the bucket and the DynamoDB table that the demo's table lies in, where they are not there yet.

Names come from STORE_BUCKET and STORE_TABLE, all else from the usual variables of AWS. Runs in committerd's own image,
which has botocore.
"""

from __future__ import annotations

import os

import botocore.session
from botocore.config import Config


def main() -> None:
    session = botocore.session.get_session()
    region = os.environ["AWS_REGION"]  # botocore itself looks at AWS_DEFAULT_REGION only
    s3 = session.create_client("s3", region_name=region, config=Config(s3={"addressing_style": "path"}))
    buckets = [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
    if os.environ["STORE_BUCKET"] not in buckets:
        s3.create_bucket(Bucket=os.environ["STORE_BUCKET"])
    dynamodb = session.create_client("dynamodb", region_name=region)
    if os.environ["STORE_TABLE"] not in dynamodb.list_tables()["TableNames"]:
        dynamodb.create_table(
            TableName=os.environ["STORE_TABLE"],
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[
                {"AttributeName": "base_uri", "AttributeType": "S"},
                {"AttributeName": "version", "AttributeType": "N"},
            ],
            KeySchema=[
                {"AttributeName": "base_uri", "KeyType": "HASH"},
                {"AttributeName": "version", "KeyType": "RANGE"},
            ],
        )
        dynamodb.get_waiter("table_exists").wait(TableName=os.environ["STORE_TABLE"])


if __name__ == "__main__":
    main()
