"""UPDATE, DELETE, MERGE and INSERT on Paimon tables: parsed and evaluated by Spark, committed once by us."""
