# needs: numpy
# A shell script of three phases: the first is quick, the second trains, the third reads its result.
set -e
python -c 'print("prepared"); open("prepared", "w").write("6")'
python numpy_loop.py "$(cat prepared)"
python -c 'import json, time; [(time.sleep(0.02), print("evaluates", n, flush=True)) for n in range(10)]; json.dump(len(json.load(open("result.json"))[1]), open("result.json", "w"))'
