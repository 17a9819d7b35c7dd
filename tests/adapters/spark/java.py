"""The Java that Spark starts, one for a process."""

import pyspark

# For jobs of a second an optimising compiler, a parallel collector and code that is
# made for each query cost too much.
JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
FRUGAL = {
    "spark.ui.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


def end_java() -> None:
    """End the JVM of this process: it keeps the environment and folder it began in."""
    context = pyspark.SparkContext
    if context._active_spark_context is not None:
        context._active_spark_context.stop()
    if context._gateway is not None:
        process = context._gateway.proc
        context._gateway.shutdown()
        process.stdin.close()  # the JVM ends when its standard input does
        process.wait(60)
        context._gateway = context._jvm = None
