"""Write who changed tables, why, and who approved it, to a file or to a table.

Made by ``make functions``; ``--help`` lists the flags.
"""

from airflow_paimon.spark.launch import main

if __name__ == "__main__":
    main("export_audit")
