# %% [markdown]
# # Distributed deep learning with Spark and Keras
#
# The notebook of dist-keras (2016), run again on Keras 3: signal and background of the
# ATLAS Higgs challenge, five trainers, one chart. Lines that had to change since 2016
# are marked with `was:`; all others are as they were. The file
# `atlas_higgs_22889.csv.gz`, a part of CERN's open data, is expected in the folder
# `SHOAL_DATA`. `higgs_spark.ipynb` is made from this file: `make notebooks`.

# %%
# !(date +%d\ %B\ %G)

# %%
import os
import time

import numpy as np  # noqa: F401
import requests
from keras.layers import Activation, Dense, Dropout  # was: keras.layers.core
from keras.models import Sequential
from keras.optimizers import *
from pyspark import SparkConf, SparkContext
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import StandardScaler, StringIndexer, VectorAssembler

from shoal.spark import *  # was: distkeras.distributed, distkeras.utils

# %% [markdown]
# ## Where it runs
#
# `yarn = "HOST:8088"` trains on a cluster with as many executors as it has nodes.

# %%
application_name = "Distributed Keras Higgs"
using_spark_2 = False
yarn = ""  # "HOST:8088"
if yarn:
    master = "yarn"  # was: yarn-client
    max_num_executors = 7
    num_cores = 4
    metrics = requests.get("http://" + yarn + "/ws/v1/cluster/metrics").json()
    num_executors = min(metrics["clusterMetrics"]["activeNodes"], max_num_executors)
else:
    master = "local[*]"
    num_cores = 3
    num_executors = 1

num_workers = num_executors * num_cores
print(f"Number of desired executors: {num_executors}")  # was: backquotes
print(f"Number of desired cores per executor: {num_cores}")
print(f"Total number of workers: {num_workers}")

# %%
# was: PYSPARK_SUBMIT_ARGS with the package spark-csv, which is a part of Spark now
conf = SparkConf()
conf.set("spark.app.name", application_name)
conf.set("spark.master", master)
conf.set("spark.executor.cores", num_cores)  # was: backquotes
conf.set("spark.executor.instances", num_executors)
conf.set("spark.locality.wait", "0")
conf.set("spark.serializer", "org.apache.spark.serializer.KryoSerializer")

if using_spark_2:
    from pyspark.sql import SparkSession  # added: it was never imported

    sc = SparkSession.builder.config(conf=conf).appName(application_name).getOrCreate()
    reader = sc
else:
    sc = SparkContext(conf=conf)
    from pyspark import SQLContext

    reader = SQLContext(sc)

# %% [markdown]
# ## Events
#
# From a CSV file to a vector of normalised features, an index of the label, and a
# vector of the label.

# %%
path = os.path.join(os.environ.get("SHOAL_DATA", "data"), "atlas_higgs_22889.csv.gz")
raw_dataset = (
    reader.read.format("com.databricks.spark.csv")
    .options(header="true", inferSchema="true")
    .load(path)
)
raw_dataset.printSchema()

# %%
features = raw_dataset.columns
features.remove("EventId")
features.remove("Weight")
features.remove("Label")
features.remove("KaggleSet")  # added: CERN's file has two columns more
features.remove("KaggleWeight")
vector_assembler = VectorAssembler(inputCols=features, outputCol="features")
dataset = vector_assembler.transform(raw_dataset)

# %%
standard_scaler = StandardScaler(
    inputCol="features", outputCol="features_normalized", withStd=True, withMean=True
)
standard_scaler_model = standard_scaler.fit(dataset)
dataset = standard_scaler_model.transform(dataset)

# %%
label_indexer = StringIndexer(inputCol="Label", outputCol="label_index").fit(dataset)
dataset = label_indexer.transform(dataset)

nb_classes = 2
nb_features = len(features)
transformer = LabelVectorTransformer(
    output_dim=nb_classes, input_col="label_index", output_col="label"
)
dataset = transformer.transform(dataset).toDF()
dataset = dataset.select("features_normalized", "label_index", "label")

# %%
dataset = shuffle(dataset)
(trainingSet, testSet) = dataset.randomSplit([0.7, 0.3])
trainingSet.cache()
testSet.cache()
print(f"{trainingSet.count():,} events to train on, {testSet.count():,} to test with")

# %% [markdown]
# ## Model

# %%
model = Sequential()
model.add(Dense(600, input_shape=(nb_features,)))
model.add(Activation("relu"))
model.add(Dropout(0.2))
model.add(Dense(600))
model.add(Activation("relu"))
model.add(Dense(nb_classes))
model.add(Activation("softmax"))
model.summary()

optimizer = "adagrad"
loss = "categorical_crossentropy"


# %%
def evaluate(model):
    evaluator = MulticlassClassificationEvaluator(
        metricName="f1", predictionCol="predicted_index", labelCol="label_index"
    )
    predictor = ModelPredictor(keras_model=model, features_col="features_normalized")
    index_transformer = LabelIndexTransformer(output_dim=nb_classes)
    predicted = testSet.select("features_normalized", "label_index", "label")
    predicted = predictor.predict(predicted).toDF()
    predicted = index_transformer.transform(predicted).toDF()
    return evaluator.evaluate(predicted)


results = {}
time_spent = {}

# %%
testSet = testSet.repartition(num_workers)
trainingSet = trainingSet.repartition(num_workers)

# %% [markdown]
# ## Trainers
#
# `model` is never changed: each training begins at the same weights.

# %%
trainer = SingleTrainer(
    keras_model=model, loss=loss, worker_optimizer=optimizer,
    features_col="features_normalized", num_epoch=1, batch_size=64,
)  # fmt: skip
start = time.time()
trained_model = trainer.train(trainingSet)
dt = time.time() - start
print(f"Time spent (SingleTrainer): {dt:.2f} seconds.")  # was: backquotes
results["single_trainer"] = evaluate(trained_model)
time_spent["single_trainer"] = dt
print(f"F1 (SingleTrainer): {results['single_trainer']:.4f}")

# %%
trainer = EASGD(
    keras_model=model, worker_optimizer=optimizer, loss=loss,
    features_col="features_normalized", num_workers=num_workers, batch_size=64,
    num_epoch=1, rho=5.0, learning_rate=0.04,
)  # fmt: skip
start = time.time()
trained_model = trainer.train(trainingSet)
dt = time.time() - start
print(f"Time spent (EASGD): {dt:.2f} seconds.")
results["easgd_trainer"] = evaluate(trained_model)
time_spent["easgd_trainer"] = dt
print(f"F1 (EASGD): {results['easgd_trainer']:.4f}")

# %%
trainer = AsynchronousEASGD(
    keras_model=model, worker_optimizer=optimizer, loss=loss,
    features_col="features_normalized", num_workers=num_workers, batch_size=10,
    num_epoch=1, communication_window=30, rho=5.0, learning_rate=0.05,
)  # fmt: skip
start = time.time()
trained_model = trainer.train(trainingSet)
dt = time.time() - start
print(f"Time spent (Asynchronous EASGD): {dt:.2f} seconds.")
results["async_easgd_trainer"] = evaluate(trained_model)
time_spent["async_easgd_trainer"] = dt
print(f"F1 (Asynchronous EASGD): {results['async_easgd_trainer']:.4f}")

# %%
trainer = AsynchronousEAMSGD(
    keras_model=model, worker_optimizer=optimizer, loss=loss,
    features_col="features_normalized", num_workers=num_workers, batch_size=10,
    num_epoch=1, communication_window=10, rho=5.0, learning_rate=0.05, momentum=0.85,
)  # fmt: skip
start = time.time()
trained_model = trainer.train(trainingSet)
dt = time.time() - start
print(f"Time spent (Asynchronous EAMSGD): {dt:.2f} seconds.")
results["async_eamsgd_trainer"] = evaluate(trained_model)
time_spent["async_eamsgd_trainer"] = dt
print(f"F1 (Asynchronous EAMSGD): {results['async_eamsgd_trainer']:.4f}")

# %%
trainer = DOWNPOUR(
    keras_model=model, worker_optimizer=optimizer, loss=loss,
    features_col="features_normalized", num_workers=num_workers, batch_size=62,
    num_epoch=1, learning_rate=0.05,
)  # fmt: skip
start = time.time()
trained_model = trainer.train(trainingSet)
dt = time.time() - start
print(f"Time spent (DOWNPOUR): {dt:.2f} seconds.")
results["downpour_trainer"] = evaluate(trained_model)
time_spent["downpour_trainer"] = dt
print(f"F1 (DOWNPOUR): {results['downpour_trainer']:.4f}")

# %% [markdown]
# ## Results
#
# Batches differ (64, 10, 62), so these charts compare more than algorithms.

# %%
# %matplotlib inline
import matplotlib.pyplot as plt

plt.bar(range(len(results)), results.values(), 0.2, align="center", color="b")
plt.xticks(range(len(results)), results.keys(), rotation=25)
plt.xlabel("Trainer")
plt.ylabel("F1")
plt.title("F1 score")
plt.show()

# %%
plt.bar(range(len(time_spent)), time_spent.values(), 0.2, align="center", color="b")
plt.xticks(range(len(time_spent)), time_spent.keys(), rotation=25)
plt.xlabel("Trainer")
plt.ylabel("Seconds")
plt.title("Training time")
plt.show()

# %%
improvement = time_spent["single_trainer"] / time_spent["async_easgd_trainer"] * 100.0
print(f"Improvement by asynchronous EASGD: {improvement:.1f} %")  # was: backquotes
print(results)
print(time_spent)

# %%
sc.stop()
