import java.io.File;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** An HDFS of one name node and one data node on free ports of the loopback, below the folder that is the only argument.
 *
 * Prints its URI on a line of its own, and ends when its standard input does.
 */
public final class MiniHdfs {
    public static void main(String[] arguments) throws Exception {
        System.setProperty("hadoop.home.dir", arguments[0]);
        Configuration conf = new Configuration();
        conf.set("hdfs.minidfs.basedir", new File(arguments[0]).getAbsolutePath());
        conf.setInt("dfs.replication", 1);
        MiniDFSCluster cluster = new MiniDFSCluster.Builder(conf).numDataNodes(1).build();
        cluster.waitActive();
        System.out.println("ready " + cluster.getURI());
        while (System.in.read() >= 0) { }
        cluster.shutdown(true);
        System.exit(0);
    }
}
