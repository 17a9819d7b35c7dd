"""The Java that Spark starts, one for a process."""

import pyspark


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
