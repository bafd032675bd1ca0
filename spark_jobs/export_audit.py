"""Export the audit of tables as a document, or as rows of a table. ``--help`` lists the flags."""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("export_audit")
