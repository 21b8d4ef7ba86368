"""Work sharing with dead letters: three consumers divide the jobs of one subscriber; a job that fails three times is set aside.

    quiver up --data-dir quiver_data --cores 2 &
    python examples/work_sharing.py

The node is the one of `QUIVER_RUN_DIR`, else the one of this user. The consumers are threads here, and may as well be processes. When the
cause of the failures is gone, `quiver subscribers replay-dead-letters example-jobs-dead` sends the jobs that were set aside back.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

import quiver_actors

TOPIC, LETTERS = "example-jobs", "example-jobs-dead"
JOBS, IMPOSSIBLE, CONSUMERS = 60, 13, 3


def consume(client: quiver_actors.Client) -> tuple[set[int], int]:
    """Work until nothing is left for anybody; returns the jobs that were done here, and how many attempts failed."""
    done, failed = set(), 0
    # `lease`: what this consumer holds goes to another one if it hangs for so many seconds. If it dies, that happens at once.
    with client.subscribe("workers", topic=TOPIC, max_deliveries=3, lease=30, prefetch=2) as deliveries:
        while not deliveries.all_drained():
            for delivery in deliveries.get_many(2, timeout=0.2):
                job = delivery.batch.column("job")[0].as_py()
                if job == IMPOSSIBLE:
                    delivery.defer()  # gives it back: it is delivered again, perhaps to another consumer
                    failed += 1
                else:
                    delivery.ack()
                    done.add(job)
    return done, failed


def main() -> None:
    with quiver_actors.connect() as client:
        client.create_topic(TOPIC, if_missing=True)
        client.create_topic(LETTERS, if_missing=True)  # or it is made when the first letter comes
        client.subscribe("workers", topic=TOPIC, max_deliveries=3).close()  # from here on it is owed every job
        with client.subscribe("letter-reader", topic=LETTERS, start="earliest") as letters:
            client.push_many((pa.record_batch({"job": [job]}) for job in range(JOBS)), topic=TOPIC)
            client.flush(TOPIC)
            with ThreadPoolExecutor(CONSUMERS) as pool:
                outcomes = list(pool.map(consume, [client] * CONSUMERS))
            client.flush(LETTERS)
            letter = letters.get(timeout=60)
            if letter is None:
                raise SystemExit("no dead letter came")
            with letter:  # slot 63 says where it came from and why
                print("set aside:", letter[63].select(["dead_letter.subscriber", "dead_letter.reason"]).to_pylist())
    done = set().union(*(done for done, _ in outcomes))
    print(f"did {len(done)} of {JOBS} jobs; one was set aside after {sum(failed for _, failed in outcomes)} attempts")


if __name__ == "__main__":
    main()
