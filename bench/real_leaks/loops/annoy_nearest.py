from annoy import AnnoyIndex
from common import run

index = AnnoyIndex(2, "euclidean")
for number in range(1000):
    index.add_item(number, [number, number / 2])
index.build(2)
run(lambda: index.get_nns_by_vector([7, 8], 20, include_distances=True), 2000)
