import java.lang.invoke.MethodHandle;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.MethodType;
import java.util.Arrays;
import java.util.concurrent.Executors;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.ScheduledThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * The loops of the JDK's benchmark of that name, without its harness: prints {@code row|peer|nanoseconds}. It is
 * compiled by a compiler that knows no more than Java 11, so what is newer is found as it runs.
 */
class DelayedTasks {
    static final int TASKS = 10_000, WARM = 40, ROUNDS = 9;

    interface Loop { void run(ScheduledExecutorService pool) throws Throwable; }

    static final MethodHandle START_VIRTUAL;

    static {
        try {
            var type = MethodType.methodType(Thread.class, Runnable.class);
            START_VIRTUAL = MethodHandles.lookup().findStatic(Thread.class, "startVirtualThread", type);
        } catch (ReflectiveOperationException missing) {
            throw new ExceptionInInitializerError(missing);
        }
    }

    static void cancels(ScheduledExecutorService pool) {
        var tasks = new ScheduledFuture<?>[TASKS];
        for (int i = 0; i < TASKS; i++) tasks[i] = pool.schedule(() -> { }, 30, TimeUnit.MINUTES);
        for (var task : tasks) task.cancel(false);
    }

    static void othersCancel(ScheduledExecutorService pool) throws Throwable {
        var others = new Thread[TASKS];
        for (int i = 0; i < TASKS; i++) {
            var task = pool.schedule(() -> { }, 30, TimeUnit.MINUTES);
            Runnable cancel = () -> task.cancel(false);
            others[i] = (Thread) START_VIRTUAL.invokeExact(cancel);
        }
        for (var other : others) other.join();
    }

    static void executes(ScheduledExecutorService pool) throws Exception {
        var tasks = new ScheduledFuture<?>[TASKS];
        for (int i = 0; i < TASKS; i++) tasks[i] = pool.schedule(() -> { }, 10, TimeUnit.MILLISECONDS);
        for (var task : tasks) task.get();
    }

    static void row(String name, String peer, Supplier<ScheduledExecutorService> pools, Loop loop) throws Throwable {
        var nanos = new double[ROUNDS];
        for (int round = -WARM; round < ROUNDS; round++) {
            long start = System.nanoTime();
            var pool = pools.get();
            loop.run(pool);
            pool.shutdown();
            if (!pool.awaitTermination(1, TimeUnit.MINUTES)) throw new IllegalStateException("the pool goes on");
            if (round >= 0) nanos[round] = (System.nanoTime() - start) / (double) TASKS;
        }
        Arrays.sort(nanos);
        System.out.printf("jdk: %s|%s|%.1f%n", name, peer, nanos[ROUNDS / 2]);
    }

    public static void main(String[] arguments) throws Throwable {
        Supplier<ScheduledExecutorService> fork = 
            () -> (ScheduledExecutorService) (Object) new ForkJoinPool(Runtime.getRuntime().availableProcessors());
        Supplier<ScheduledExecutorService> single = () -> {
            var pool = (ScheduledThreadPoolExecutor) Executors.newScheduledThreadPool(1);
            pool.setRemoveOnCancelPolicy(true);
            return pool;
        };
        var names = new String[] {"cancelled by the thread", "cancelled by a task each", "executed after 10 ms"};
        var loops = new Loop[] {DelayedTasks::cancels, DelayedTasks::othersCancel, DelayedTasks::executes};
        for (int i = 0; i < loops.length; i++) {
            row(names[i], "ForkJoinPool", fork, loops[i]);
            row(names[i], "ScheduledThreadPoolExecutor", single, loops[i]);
        }
    }
}
