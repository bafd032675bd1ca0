import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.hive.conf.HiveConf;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.TUGIBasedProcessor;
import org.apache.hadoop.hive.metastore.api.ThriftHiveMetastore;
import org.apache.hadoop.hive.metastore.txn.TxnDbUtil;
import org.apache.hadoop.hive.metastore.txn.TxnStore;
import org.apache.hadoop.hive.metastore.txn.TxnUtils;
import org.apache.hadoop.hive.thrift.TUGIContainingTransport;
import org.apache.thrift.server.TThreadPoolServer;
import org.apache.thrift.transport.TServerSocket;

/** A Hive metastore on a free port of the loopback, its database in memory, which lets a user see only the tables whose
 * folders that user may read. Arguments: a folder; after how many seconds it forgets a lock whose holder is silent.
 *
 * Prints its port on a line of its own, and ends when its standard input does.
 */
public final class MiniHive {
    private static final String AUTHORIZATION = "org.apache.hadoop.hive.ql.security.authorization.";

    public static void main(String[] arguments) throws Exception {
        Path folder = Paths.get(arguments[0]).toAbsolutePath();
        System.setProperty("derby.stream.error.file", folder.resolve("derby.log").toString());
        HiveConf conf = new HiveConf();
        conf.set("javax.jdo.option.ConnectionURL", "jdbc:derby:memory:metastore;create=true");
        conf.set("datanucleus.schema.autoCreateAll", "true");
        conf.set("datanucleus.connectionPoolingType", "hikaricp");
        conf.set("hive.metastore.schema.verification", "false");
        conf.set("hive.metastore.warehouse.dir", "file:" + folder.resolve("warehouse"));
        conf.set("hive.txn.timeout", arguments[1] + "s");
        conf.set("hive.metastore.pre.event.listeners", AUTHORIZATION + "AuthorizationPreEventListener");
        conf.set("hive.security.metastore.authorization.manager", AUTHORIZATION + "StorageBasedAuthorizationProvider");
        conf.set("hive.security.metastore.authorization.auth.reads", "true");
        conf.unset("hive.in.test");
        TxnDbUtil.prepDb(conf);

        ThriftHiveMetastore.Iface handler = HiveMetaStore.newRetryingHMSHandler("metastore", conf, true);
        handler.get_all_databases();
        TServerSocket socket = new TServerSocket(new InetSocketAddress(InetAddress.getLoopbackAddress(), 0));
        TThreadPoolServer server = new TThreadPoolServer(
            new TThreadPoolServer.Args(socket)
                .processor(new TUGIBasedProcessor<>(handler))
                .transportFactory(new TUGIContainingTransport.Factory()));
        background(server::serve);
        background(() -> forgetSilentLocks(TxnUtils.getTxnStore(conf)));
        System.out.println("ready " + socket.getServerSocket().getLocalPort());
        while (System.in.read() >= 0) { }
        System.exit(0);
    }

    private static void background(Runnable work) {
        Thread thread = new Thread(work);
        thread.setDaemon(true);
        thread.start();
    }

    /** What AcidHouseKeeperService does in a whole Hive. */
    private static void forgetSilentLocks(TxnStore store) {
        while (true) {
            store.performTimeOuts();
            try {
                TimeUnit.MILLISECONDS.sleep(500);
            } catch (InterruptedException ended) {
                return;
            }
        }
    }
}
