import pandas
from common import run

times = pandas.Series(pandas.date_range("2020-01-01", periods=100, tz="UTC"))
frame = pandas.DataFrame({"time": times, "number": range(100), "name": ["x"] * 100})
run(lambda: frame.to_json(), 300)
