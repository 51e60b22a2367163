# needs: numpy
# The same script with two seeds at the same time.
mkdir -p a b
(cd a && python ../numpy_loop.py 1) & (cd b && python ../numpy_loop.py 2) & wait -n && wait -n || exit 1
cat a/result.json b/result.json > result.json
